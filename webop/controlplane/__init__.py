"""A real local Kubernetes control plane: etcd and kube-apiserver as local processes, no Docker.

Flow: :mod:`.binaries` finds, downloads or builds the executables (with :mod:`.download` and
:mod:`.build`) into the folders of :mod:`.cache`. :mod:`.cluster` makes the certificates and
tokens of one run (:mod:`.credentials`), starts the processes (:mod:`.command_lines`), waits until
the API server is ready (:mod:`.cluster_client`), and records the processes (:mod:`.state`), so that
:mod:`.reaper` can end them after any crash.

The command line (``webop cluster``) and ``webop.testing`` use this package.
It imports nothing here, so that importing one module does not load the others.
"""
