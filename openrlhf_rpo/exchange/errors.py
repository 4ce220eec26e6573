"""What can be wrong with a file or a source that is read or written."""


class ExchangeError(RuntimeError):
    """A file or a source that cannot be used; the message says which, why, and what to do."""
