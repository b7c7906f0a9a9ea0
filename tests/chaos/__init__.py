"""`make chaos`: real processes under load and a random mixture of faults at once; the history is checked afterwards."""
