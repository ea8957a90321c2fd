"""Memory, processes, stacks and the end of a job, by the operating system."""
