"""The binding of Penelope to SGLang, loaded as SGLang's own plug-in.

Nothing here patches SGLang's source: ``plugin.load`` runs in every process
through the entry-point group ``sglang.srt.plugins``, and ``--radix-cache-backend
penelope`` selects the cache.  See ``docs/sglang.md``.
"""
