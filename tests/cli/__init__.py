"""The command line, in the process of the tests."""
