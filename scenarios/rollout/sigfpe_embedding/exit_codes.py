"""What the exit codes of children say: do ids divide by zero, or products, or nothing here?

A code is as ``multiprocessing`` has it: 0, or the negative number of the signal. The functions are
pure, and take plain values.
"""

import signal

SIGFPE = -signal.SIGFPE

IDS = "H1, ids"
PRODUCTS = "H2, products"
NOTHING = "nothing died"
NEITHER = "neither"
_LOOK_UPS = {"look-up, strided", "look-up, contiguous"}
_WITH_PRODUCT = {"product", "both, strided", "both, contiguous"}


def name_hypothesis(row):
    """Name the hypothesis that the exit codes of one product's acts support.

    Args:
        row: By act. Under H2 those with a product die, and no others. Under H1 an act with ids
            dies, and the product alone does not.
    """
    died = {act for act, code in row.items() if code == SIGFPE}
    if not died:
        return NOTHING
    if died == _WITH_PRODUCT:
        return PRODUCTS
    return NEITHER if "product" in died else IDS


def render_table(rows, control):
    """Render the exit codes: a line a product, a column an act, and the hypothesis of the line."""
    acts = [*next(iter(rows.values()))]
    lines = [["", *acts, "supports"]]
    for name, row in rows.items():
        lines.append([name, *(str(row[act]) for act in acts), name_hypothesis(row)])
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    template = "  ".join(f"{{:<{width}}}" for width in widths)
    table = [template.format(*line).rstrip() for line in lines]
    return "\n".join([*table, f"control, a division by zero: {control}"])


def find_contradictions(rows, control, *, cured):
    """Find what in exit codes says that ids matter, or that the remedy doesn't hold: sentences.

    Args:
        rows: The exit codes by product and act.
        control: That of the child that divides by zero.
        cured: Whether the mapped cuBLAS is one in which no product is known to die.
    """
    if control != SIGFPE:
        return [f"the control ended with {control}, not {SIGFPE}: the other exit codes say nothing"]
    found = []
    for name, row in rows.items():
        product_died = row["product"] == SIGFPE
        others = {act: code for act, code in row.items() if code not in (0, SIGFPE)}
        if others:
            found.append(f"{name}: ended with neither 0 nor SIGFPE: {others}")
        dead = sorted(act for act in _LOOK_UPS if row[act] == SIGFPE)
        if dead:
            found.append(f"{name}: a look-up alone died: {', '.join(dead)}")
        apart = sorted(act for act in _WITH_PRODUCT if (row[act] == SIGFPE) != product_died)
        if apart:
            found.append(f"{name}: ids decide: {', '.join(apart)} did not end as the product alone")
        if cured and product_died:
            found.append(f"{name}: died with a cuBLAS that should be cured")
    return found
