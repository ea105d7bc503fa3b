"""The simulated site: its pages, their resources, and its visitors."""

import random
from collections import Counter

import pytest

from sparq.demo.website import (
    BROWSERS,
    HOST,
    ROBOTS,
    SHARED,
    Browser,
    SiteModel,
    VisitorFactory,
    pages,
)
from sparq.pipeline.enrich import robot


def test_a_seed_always_gives_the_same_site() -> None:
    """A seed always gives the same pages, with unique paths; another seed gives others."""
    first, again, other = pages(random.Random(1)), pages(random.Random(1)), pages(random.Random(2))

    assert first == again != other
    assert len({page.path for page in first}) == len(first) > 100


@pytest.mark.parametrize("warm", [False, True])
def test_a_browser_loads_each_resource_once(warm: bool) -> None:
    """A browser loads a page on each visit, but styles and images once, with the page as referer.

    A warm cache already has the resources that all pages share.
    """
    world = SiteModel(random.Random(4))
    page = next(page for page in world.pages if page.images)
    browser = Browser(world, world.population.person(), warm=warm)
    for second in (100.0, 200.0, 300.0):
        browser.open(page, second, "-")

    loaded = Counter(hit.path for hit in browser.hits)
    shared = {} if warm else {path: 1 for path, _ in SHARED}
    assert loaded == {page.path: 3, **shared, **{path: 1 for path, _ in page.images}}
    assert {hit.referer for hit in browser.hits if hit.path != page.path} == {HOST + page.path}
    assert all(100 <= hit.second < 200 for hit in browser.hits[:-2])


def test_only_the_people_of_an_office_share_an_address() -> None:
    """One person in 20 shares the address of one of 40 offices; all other addresses are unique."""
    rng = random.Random(6)
    population = VisitorFactory(rng)
    state = rng.getstate()
    twins = [population.robot().address]
    rng.setstate(state)
    twins.append(population.robot().address)
    people = Counter(population.person().address for _ in range(4_000))
    programs = [population.pretender().address for _ in range(500)]
    programs += [population.robot().address for _ in range(500)]

    shared = [address for address, count in people.items() if count > 1]
    assert 0 < len(shared) <= 40
    assert 100 < sum(people[address] for address in shared) < 300
    assert len({*twins, *programs}) == 2 + len(programs)
    assert people.keys().isdisjoint(programs)


def test_only_declared_robots_name_themselves() -> None:
    """People and undeclared robots have a browser's user agent, declared robots their own."""
    population = VisitorFactory(random.Random(7))

    assert set(BROWSERS).isdisjoint(ROBOTS)
    assert {population.person().user_agent for _ in range(200)} <= set(BROWSERS)
    assert {population.pretender().user_agent for _ in range(200)} <= set(BROWSERS)
    assert {population.robot().user_agent for _ in range(200)} <= set(ROBOTS)


def test_the_pipeline_knows_every_robot_by_its_user_agent() -> None:
    """Every simulated robot's user agent is one that the pipeline knows as declared."""
    assert all(robot(user_agent) != (None,) for user_agent in ROBOTS)
