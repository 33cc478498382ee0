"""Claiming: which pipes a group takes messages from, the new ones, and those that come again."""
