"""The parts of the simulation: weather (chances), truth, world (links, actors, broker), guards."""
