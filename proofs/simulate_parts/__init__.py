"""The parts of the simulation: weather (chances), links (network), actors, truth, world (broker).

All of one simulated run happens in one thread and takes its chances from one seed, so that a run
that fails is repeated by its seed.
"""
