"""Extents as files of one directory, mapped by who reads them."""
