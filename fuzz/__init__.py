"""Fuzzers, one for each kind of input that strangers write: ``python -m fuzz --help``. For development, not packaged.

A target (:class:`fuzz.target.Target`) takes bytes and either comes back or raises one of the errors it names; anything
else is a finding. :mod:`fuzz.driver` makes the bytes, with atheris (coverage feedback) where it is installed, else by
mutation of the target's seeds, and watches over crashes, hangs and memory from another process.
"""
