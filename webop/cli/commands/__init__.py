"""The commands of ``webop``, one module each; they only parse options and print."""
