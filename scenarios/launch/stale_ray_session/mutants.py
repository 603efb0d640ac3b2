from mutants import broken, replaces
from pytest_rlregress.remedies.launch_environment import stale_ray_address


@broken(only="that_is_gone")
def environment_alone(environ):
    return stale_ray_address({"RAY_TMPDIR": "/nowhere", **environ, "TMPDIR": "/nowhere"})


@broken(only="left_alone")
def file_first(environ):
    return stale_ray_address({**environ, "RAY_ADDRESS": ""})


replaces("absent", "ray.init", only="test_address_in_the_environment")(
    lambda original, **settings: original(**settings) if settings else None
)


@replaces("changed", "ray.init", only="test_address_in_the_environment")
def ray_finds_no_port():
    raise ValueError("no free port")
