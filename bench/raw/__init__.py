"""The communicator's collectives alone, measured and printed as nccl-tests does for NCCL."""
