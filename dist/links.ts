// Replaces the links of a page that lead nowhere, where less is shipped than the sources contain.

/** leads: called with the path of a link to a file. A dead link becomes its text and the path. */
export function withoutDeadLinks(page: string, leads: (path: string) => boolean): string {
  return page.replaceAll(/\[([^\]]+)\]\(([^)\s]+)\)/g, (link, text: string, target: string) => {
    if (/^(#|[a-z]+:)/.test(target)) return link;
    const [path = ""] = target.split("#");
    return leads(path) ? link : `${text} (${path})`;
  });
}
