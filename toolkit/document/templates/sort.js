
// A column's name becomes a button: click, Enter or Space sorts the rows by it, once more reverses them.
for (const table of document.querySelectorAll("table.sortable")) {
  const names = [...table.tHead.rows[0].cells];
  names.forEach((name, column) => {
    const button = document.createElement("button");
    button.type = "button";
    button.append(...name.childNodes);
    name.append(button);
    name.setAttribute("aria-sort", "none");
    button.addEventListener("click", () => {
      const down = name.getAttribute("aria-sort") === "ascending";
      names.forEach((other) => other.setAttribute("aria-sort", "none"));
      name.setAttribute("aria-sort", down ? "descending" : "ascending");
      // Numbers by their value, before texts; missing values come last in either order.
      const key = (row) => {
        const cell = row.cells[column];
        const number = cell.dataset.value;
        if (number === undefined) return [1, cell.textContent.trim()];
        return number === "" ? [2, 0] : [0, Number(number)];
      };
      const order = (one, other) => {
        const [left, a] = key(one), [right, b] = key(other);
        if (left !== right) return left === 2 || right === 2 ? left - right : (left - right) * (down ? -1 : 1);
        const found = left === 1 ? a.localeCompare(b, "en", { numeric: true }) : a - b;
        return down ? -found : found;
      };
      table.tBodies[0].append(...[...table.tBodies[0].rows].sort(order));
    });
  });
}
