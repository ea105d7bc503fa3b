"""The simulated site: its pages, what a browser loads with them, and who visits it."""

import random
from collections import Counter

import pytest

from sparq.demo.website import BROWSERS, HOST, ROBOTS, SHARED, Browser, Population, World, pages
from sparq.pipeline.visits import declared_name


def test_a_seed_makes_a_site() -> None:
    """The same pages each time, each path once; another seed gives other sizes."""
    first, again, other = pages(random.Random(1)), pages(random.Random(1)), pages(random.Random(2))

    assert first == again != other
    assert len({page.path for page in first}) == len(first) > 100


def test_the_first_pages_are_the_most_visited() -> None:
    """Popularity falls with the page's place; a robot's choice does not follow it."""
    world = World(random.Random(3))
    visits = Counter(world.page().path for _ in range(5_000))
    crawled = Counter(world.any_page().path for _ in range(5_000))
    first, last = world.pages[0].path, world.pages[-1].path

    assert visits[first] > 10 * visits[last]
    assert crawled[first] < 3 * crawled[last]


@pytest.mark.parametrize("warm", [False, True])
def test_a_browser_loads_each_resource_once(warm: bool) -> None:
    """Pages again and again, styles and images once, with their page as referer; a warm cache has
    what all pages share."""
    world = World(random.Random(4))
    page = next(page for page in world.pages if page.images)
    browser = Browser(world, world.population.person(), warm=warm)
    for second in (100.0, 200.0, 300.0):
        browser.open(page, second, "-")

    loaded = Counter(hit.path for hit in browser.hits)
    shared = {} if warm else {path: 1 for path, _ in SHARED}
    assert loaded == {page.path: 3, **shared, **{path: 1 for path, _ in page.images}}
    assert {hit.referer for hit in browser.hits if hit.path != page.path} == {HOST + page.path}
    assert all(100 <= hit.second < 200 for hit in browser.hits[:-2])


def test_requests_fail_now_and_then() -> None:
    """Two in a hundred, with the small body of an error page."""
    world = World(random.Random(5))
    visitor = world.population.person()
    hits = [world.hit(visitor, 0, "/", 9_000) for _ in range(10_000)]
    statuses = Counter(hit.status for hit in hits)

    assert statuses.keys() == {200, 404, 500}
    assert 100 < statuses[404] + statuses[500] < 300
    assert {(hit.status == 200, hit.size) for hit in hits} == {(True, 9_000), (False, 512)}


def test_only_the_people_of_an_office_share_an_address() -> None:
    """One person in twenty is in one of 40 offices; everybody else has an address of their own."""
    rng = random.Random(6)
    population = Population(rng)
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
    """People and robots that hide have the user agent of a browser."""
    population = Population(random.Random(7))

    assert set(BROWSERS).isdisjoint(ROBOTS)
    assert {population.person().user_agent for _ in range(200)} <= set(BROWSERS)
    assert {population.pretender().user_agent for _ in range(200)} <= set(BROWSERS)
    assert {population.robot().user_agent for _ in range(200)} <= set(ROBOTS)


def test_the_pipeline_knows_every_robot_by_its_user_agent() -> None:
    """Else its label would be a lie."""
    assert all(declared_name(user_agent) for user_agent in ROBOTS)
