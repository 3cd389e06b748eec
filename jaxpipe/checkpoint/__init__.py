"""Checkpoints: written all or not at all, proved whole before they are read, onto any mesh."""
