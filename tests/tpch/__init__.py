"""The 22 queries of TPC-H as pipelines, each beside its SQL, and a test that compares them with DuckDB's answers.

``qNN.py`` has the query's text with the specification's validation parameters, ``SQL``, and the pipeline ``qNN``.
``tables`` says where their rows come from, ``answers`` how the two are run and compared.
"""
