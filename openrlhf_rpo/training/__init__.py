"""What the trainer adds to OpenRLHF: which tokens carry loss with which weight, and keyed randomness."""
