"""nsqlookupd: tells consumers which nsqd has which topic."""
