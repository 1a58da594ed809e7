"""Published accounting contracts: what each source counted, its tables reproduced, and when numbers may be compared."""
