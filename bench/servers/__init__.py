"""The servers that peers talk to, each started and stopped by the comparison itself."""
