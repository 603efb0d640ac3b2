from mutants import broken, replaces
from pytest_rlregress.remedies.launch import utf8_environment


@broken(only="check-mark-gbk")
def environment_as_it_is(environ):
    return dict(environ)


@broken(only="lone-surrogate-gbk")
def strict_utf8(environ):
    return {**environ, "PYTHONIOENCODING": "utf-8"}


replaces("absent", "subprocess.run", only="test_printing_fails")(
    lambda original, command, env, **keywords: original(command, env=utf8_environment(env), **keywords)
)
replaces("changed", "subprocess.run", only="test_printing_fails")(
    lambda original, command, env, **keywords: original(command, env={**env, "PYTHONIOENCODING": "klingon"}, **keywords)
)
