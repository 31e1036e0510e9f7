"""What all tests share. Nothing here may import liftcore: typeguard instruments only what is imported after it."""

from __future__ import annotations

import hypothesis

# Compilation takes longer than any deadline, and one commit must always give one result.
hypothesis.settings.register_profile("steady", deadline=None, derandomize=True)
hypothesis.settings.register_profile("explore", deadline=None, max_examples=1000)
hypothesis.settings.load_profile("steady")
