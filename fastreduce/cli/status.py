"""How the commands say that they failed."""

FAILED = 1
INTERRUPTED = 130  # What a shell reports for a process that SIGINT ended.
