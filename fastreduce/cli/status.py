"""How a process that a command ended says so."""

FAILED = 1
INTERRUPTED = 130  # As a shell reports a process that SIGINT ended.
