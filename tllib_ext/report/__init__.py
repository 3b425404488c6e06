"""Tables, plots and pages made from a run folder."""
