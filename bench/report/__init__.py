"""What is printed, written and drawn."""
