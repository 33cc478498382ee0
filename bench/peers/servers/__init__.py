"""Peers that are servers, or rows in one."""
