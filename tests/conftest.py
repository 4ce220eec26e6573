"""Settings of all tests."""

from hypothesis import settings

# The machine may be busy; a slow example is no failure.
settings.register_profile("no_deadline", deadline=None)
settings.load_profile("no_deadline")
