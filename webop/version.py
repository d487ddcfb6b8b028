"""The version of webop, read by the build, the command line and the user agent."""

__version__ = "0.2.0"
