"""``rlregress bisect``: which upgrade broke a test. docs/bisect.md has the promises.

The rooms, in the order of a bisect:

``command``        the options, and what the exit codes mean
``question``       which of the three it is; shows the answer
``workplace``      what all three work with: tests, settings, environments, journal
``one_package``    which release of one package
``two_locks``      which of many changed packages, then which release of each
``revisions``      which commit of a checkout: git's own bisect, with the same test
``case``           the test that is followed, from its failure at the bad end
``laboratory``     tries a lock: its environment, its runs, its line in the journal; never the same one twice

What they stand on:

``facts``          what is known: a test seen in a run, a run, a trial
``ends``           what the two ends say: pure
``search``         what to try next, from what is known: pure
``locks``          complete sets of packages: this environment, a requirements file, a record
``wishes``         what packages ask of each other, and which can therefore not be moved alone: pure
``specimen``       what is held fixed: this environment, or the part of it that the tests need
``index``          the released versions between two ends
``index_pages``    what indexes and folders say of a package
``index_settings`` where packages come from: what pip and uv are configured with
``environment``    environments built by uv, addressed by their lock
``resolver``       what uv is asked for a lock with one package moved
``installer``      runs uv
``commits``        the commits of a checkout as candidates
``worktree``       git: that checkout, in a worktree of its own
``editable``       a project installed from its folder: its name, its build, whether it is what gets imported
``revision_step``  what ``git bisect run`` starts
``trial``          a test run in an environment
``witness``        pytest's side of that: writes down what came out
``sameness``       whether what came out is the failure of the bad end: pure
``keys``           what a test is called in every environment
``records``        records of runs: which tests went from good to bad
``journal``        a line for every finished trial, from which the same command resumes
``progress``       what is said while it goes on
``conclusion``     what was found, put into an answer
``answer``         the answer: its parts
``rendering``      the answer as text, Markdown and JSON
"""
