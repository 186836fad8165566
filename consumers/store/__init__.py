"""Memtable, segments and index of one data group."""
