"""How nsqds, nsqlookupds and consumers find each other."""
