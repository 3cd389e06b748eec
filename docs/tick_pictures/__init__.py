"""Pictures of tick tables for docs/how-a-schedule-becomes-ticks.md."""
