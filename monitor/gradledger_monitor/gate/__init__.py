"""The verdict of ``gradledger check`` for CI: JUnit XML, SARIF, GitHub annotations, pytest."""
