"""What stands in the way of someone with a keyboard or a screen reader, on the page that is open."""

from __future__ import annotations

from playwright.sync_api import Page

# Visits what Tab visits, in its order. Headings, names and references are looked at beside.
IN_THE_WAY = """() => {
  const wrong = [], seen = (e) => e.outerHTML.slice(0, 100);
  const stops = [...document.querySelectorAll('a[href], button, input, select, textarea, summary, [tabindex]')]
    .filter(e => !e.disabled && e.type !== 'hidden' && e.checkVisibility({ visibilityProperty: true }));
  for (const e of stops) {
    if (e.tabIndex > 0) wrong.push(`comes before what stands before it: ${seen(e)}`);
    if (e.tabIndex < 0 || (e.type === 'radio' && !e.checked)) continue;
    e.focus({ focusVisible: true });
    if (document.activeElement !== e) { wrong.push(`takes no focus: ${seen(e)}`); continue; }
    const style = getComputedStyle(e.closest('svg') ? e.querySelector('rect') : e);
    const ring = e.closest('svg') ? style.stroke !== 'none' && parseFloat(style.strokeWidth) >= 2
      : style.outlineStyle !== 'none' && parseFloat(style.outlineWidth) >= 2;
    if (!ring) wrong.push(`shows no focus: ${seen(e)}`);
    const sum = document.querySelector('.sum'), own = e.getBoundingClientRect(), over = sum?.getBoundingClientRect();
    if (over && !sum.contains(e) && own.top < over.bottom - 1 && own.bottom > over.top + 1)
      wrong.push(`is hidden behind the sum: ${seen(e)}`);
  }
  for (const group of document.querySelectorAll('svg, .strip, .gen')) {
    const links = [...group.querySelectorAll('a[href]')].filter(e => e.checkVisibility());
    if (links.length && links.filter(e => e.tabIndex === 0).length !== 1)
      wrong.push(`is not one stop: ${group.getAttribute('aria-label')}`);
  }
  let level = 0;
  for (const e of [...document.querySelectorAll('h1, h2, h3, h4, h5, h6')].filter(e => e.checkVisibility())) {
    if (+e.tagName[1] > level + 1) wrong.push(`skips a level of headings: ${seen(e)}`);
    level = +e.tagName[1];
  }
  const ids = [...document.querySelectorAll('[id]')].map(e => e.id);
  wrong.push(...ids.filter((id, index) => ids.indexOf(id) < index).map(id => `two elements are #${id}`));
  for (const e of document.querySelectorAll('[aria-labelledby], [aria-describedby], label[for]')) {
    const named = ['aria-labelledby', 'aria-describedby', 'for'].map(name => e.getAttribute(name) || '').join(' ');
    for (const id of named.split(' ').filter(Boolean)) if (!ids.includes(id)) wrong.push(`names #${id}: ${seen(e)}`);
  }
  document.activeElement.blur();
  return wrong;
}"""


def in_the_way(page: Page) -> list[str]:
    """What takes no focus or shows none, what is hidden behind the sum, wrong headings, ids and references."""
    return [str(said) for said in page.evaluate(IN_THE_WAY)]
