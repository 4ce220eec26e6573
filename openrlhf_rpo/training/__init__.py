"""OpenRLHF's training actors and experience maker, with shared prefixes, the method's baselines, and exact resumption."""
