"""JUnit XML: one suite for each run, one test for each rule (pure).

There is no standard. The format is what Jenkins' xunit schema, GitLab and GitHub reporters read.
"""

from __future__ import annotations

from xml.etree import ElementTree as xml  # nosec B405

from gradledger_monitor.common.sanitize import sanitize
from gradledger_monitor.gate.result import CheckedRun, Gate
from gradledger_monitor.model.code.frames import code_frames, frame_text
from gradledger_monitor.model.findings import Finding, fix_title


def junit(runs: list[CheckedRun], gate: Gate) -> str:
    """The content of the file."""
    suites = xml.Element("testsuites", name="gradledger")
    for run in runs:
        suites.append(_suite(sanitize(run), gate))
    for count in ("tests", "failures", "skipped"):
        suites.set(count, str(sum(int(suite.get(count, "0")) for suite in suites)))
    xml.indent(suites)
    return xml.tostring(suites, encoding="unicode", xml_declaration=True) + "\n"


def _suite(run: CheckedRun, gate: Gate) -> xml.Element:
    suite = xml.Element("testsuite", name=run.name)
    for rule, coverage in sorted(run.evaluation.coverage.items()):
        findings = [f for f in run.evaluation.findings if f.rule == rule]
        suite.append(_case(run.name, rule, coverage, findings, gate))
    suite.set("tests", str(len(suite)))
    suite.set("failures", str(len(suite.findall("testcase/failure"))))
    suite.set("skipped", str(len(suite.findall("testcase/skipped"))))
    suite.set("errors", "0")
    return suite


def _case(name: str, rule: str, coverage: str, findings: list[Finding], gate: Gate) -> xml.Element:
    case = xml.Element("testcase", classname=f"gradledger.{name}", name=rule)
    status, _, reason = coverage.partition(": ")
    failing = [f for f in findings if gate.fails(f)]
    if failing:
        failure = xml.SubElement(case, "failure", type=failing[0].severity)
        failure.set("message", failing[0].title)
        failure.text = "\n\n".join(map(text, failing))
    elif findings:
        output = "\n\n".join(f"{gate.excuse(f)}\n{text(f)}" for f in findings)
        xml.SubElement(case, "system-out").text = output
    elif status != "ok":
        xml.SubElement(case, "skipped", message=reason or status.replace("_", " "))
    return case


def text(finding: Finding) -> str:
    """A finding as a few lines of text."""
    steps = f"steps {finding.first_step} to {finding.last_step}"
    fix = f"\n\n{fix_title(finding.fix)}:\n{finding.fix.strip()}" if finding.fix else ""
    code = "".join(f"\n\n{frame_text(frame)}" for frame in code_frames(finding.code))
    return f"{finding.severity}: {finding.title} ({steps})\n{finding.summary}{code}{fix}"
