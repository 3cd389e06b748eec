"""The named schedules: for each rank the order of its actions, as one would write it down."""
