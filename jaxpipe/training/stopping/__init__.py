"""How a run ends: signals, several processes, steps that hang, and the sentence that says so."""
