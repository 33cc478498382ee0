"""What a power cut leaves: what a process did to its disk is recorded at the system's calls, and
every state that a disk may be in afterwards is made from the record and looked into."""
