"""JUnit XML, which every CI shows as a list of tests: a suite a training, a test a rule (pure).

There is no standard; this keeps to what Jenkins' xunit schema, GitLab and GitHub reporters read.
"""

from __future__ import annotations

from xml.etree import ElementTree as xml  # nosec B405

from gradledger_monitor.common.sanitize import sanitize
from gradledger_monitor.gate.result import Checked, Gate
from gradledger_monitor.model.findings import Finding


def junit(checked: list[Checked], gate: Gate) -> str:
    """The file's content."""
    suites = xml.Element("testsuites", name="gradledger")
    for one in checked:
        suites.append(_suite(sanitize(one), gate))
    for count in ("tests", "failures", "skipped"):
        suites.set(count, str(sum(int(suite.get(count, "0")) for suite in suites)))
    xml.indent(suites)
    return xml.tostring(suites, encoding="unicode", xml_declaration=True) + "\n"


def _suite(one: Checked, gate: Gate) -> xml.Element:
    suite = xml.Element("testsuite", name=one.name)
    for rule, said in sorted(one.evaluation.coverage.items()):
        found = [f for f in one.evaluation.findings if f.rule == rule]
        suite.append(_case(one.name, rule, said, found, gate))
    suite.set("tests", str(len(suite)))
    suite.set("failures", str(len(suite.findall("testcase/failure"))))
    suite.set("skipped", str(len(suite.findall("testcase/skipped"))))
    suite.set("errors", "0")
    return suite


def _case(name: str, rule: str, said: str, found: list[Finding], gate: Gate) -> xml.Element:
    case = xml.Element("testcase", classname=f"gradledger.{name}", name=rule)
    status, _, reason = said.partition(": ")
    failing = [f for f in found if gate.fails(f)]
    if failing:
        failure = xml.SubElement(case, "failure", type=failing[0].severity)
        failure.set("message", failing[0].title)
        failure.text = "\n\n".join(text(finding) for finding in failing)
    elif found:
        told = "\n\n".join(f"{gate.excuse(f)}\n{text(f)}" for f in found)
        xml.SubElement(case, "system-out").text = told
    elif status != "ok":
        xml.SubElement(case, "skipped", message=reason or status.replace("_", " "))
    return case


def text(finding: Finding) -> str:
    """A finding as a few lines of text."""
    steps = f"steps {finding.first_step} to {finding.last_step}"
    fix = f"\n\nfix:\n{finding.fix.strip()}" if finding.fix else ""
    return f"{finding.severity}: {finding.title} ({steps})\n{finding.summary}{fix}"
