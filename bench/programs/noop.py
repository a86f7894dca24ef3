"""For torchrun: nothing. What is measured is the launcher."""
