"""How the commands say that they failed."""

FAILED = 1
INTERRUPTED = 130  # What a shell reports for a process that SIGINT ended.
NO_READER = 141  # What a shell reports for a process that SIGPIPE ended.
