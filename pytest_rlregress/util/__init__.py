"""Helpers that several packages need, each written once: they import nothing else of this package.

``arguments``   values that several commands take
``cache``       the folder for what can be made again
``files``       written whole, appended to by lines of JSON, locked
``git``         what git says of a folder
``nested``      tables and lists within one another
``processes``   descendants, names, what a process ends with
``units``       seconds and bytes as people write them
``text``        on one line, as Markdown
``toml_table``  a TOML table read key by key, with messages that name the file
"""
