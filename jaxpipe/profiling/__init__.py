"""What a model costs on the devices at hand: seconds of actions, ends of the pipe, messages and updates."""
