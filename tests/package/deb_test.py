"""make deb: three packages, unpacked into a root of their own and used from there."""

import glob
import pathlib
import re
import shutil

from builds import *


def packages(folder):
    if not shutil.which("dpkg-shlibdeps") or not shutil.which("dpkg-deb"):
        return skip("make deb", "dpkg-dev is not installed (Debian: apt-get install dpkg-dev)")
    if sanitized():
        return skip("make deb", "the library is built with a sanitizer")
    if not THOROUGH:
        os.environ["DEB_COMPRESSION"] = "none"
    if not passed("make deb", make("deb", f"PACKAGES={folder}")):
        return
    version = riffle("--version").out.decode().split()[1]
    root = os.path.join(folder, "root")
    needs = {}
    for name in ("riffle", "libriffle0", "libriffle-dev"):
        files = glob.glob(f"{folder}/{name}_{version}_*.deb")
        if not check(len(files) == 1, f"{name} is there, with its version", os.listdir(folder)):
            return
        fields = run("dpkg-deb", "-f", files[0]).stdout
        needs[name] = fields
        check(
            f"Package: {name}\n" in fields and f"Version: {version}\n" in fields,
            f"{name}: its fields",
            fields,
        )
        passed(f"{name} is unpacked", run("dpkg-deb", "-x", files[0], root))
        sums = run("sh", "-c", f"dpkg-deb -I {files[0]} md5sums | (cd {root} && md5sum -c --quiet)")
        check(sums.returncode == 0, f"{name}: its sums", sums.stdout)
        copyright = pathlib.Path(root, f"usr/share/doc/{name}/copyright")
        check(
            "No licence has been chosen" in copyright.read_text(),
            f"{name}: copyright says that there is no licence",
        )
    for name in ("riffle", "libriffle0"):
        depends = re.search(r"^Depends: (.*)$", needs[name], re.M)
        check(
            depends and "libc6 (>= " in depends[1] and "libsentencepiece0" in depends[1],
            f"{name} depends on what it is linked with",
            depends,
        )
    check(
        f"Depends: libriffle0 (= {version})" in needs["libriffle-dev"],
        "libriffle-dev needs its library",
        needs["libriffle-dev"],
    )
    check(
        "SHLIBS" not in "".join(needs.values())
        and "@" not in re.sub("<.*>", "", "".join(needs.values())),
        "every field is filled in",
        needs,
    )
    uses(folder, root, version)
    if not shutil.which("lintian"):
        return skip("lintian", "it is not installed (Debian: apt-get install lintian)")
    found = run("lintian", "--fail-on", "error", *sorted(glob.glob(f"{folder}/*.deb")))
    passed("lintian finds no error", found)


def uses(folder, root, version):
    done = answer(f"{root}/usr/bin/riffle", folder)
    passed("the program finds the model of its package", done)
    multiarch = run("dpkg-architecture", "-qDEB_HOST_MULTIARCH").stdout.strip()
    libdir = f"{root}/usr/lib/{multiarch}"
    check(
        os.path.realpath(f"{libdir}/libriffle.so")
        == os.path.realpath(f"{libdir}/libriffle.so.{version}"),
        "the library is in the folder of its architecture, with its links",
        os.listdir(libdir),
    )
    # The binaries are stripped, and find libraries by the system's paths only.
    for binary in (f"{root}/usr/bin/riffle", f"{libdir}/libriffle.so"):
        sections, dynamic = (run("readelf", "--wide", flag, binary).stdout for flag in ("-S", "-d"))
        check(
            ".debug_info" not in sections
            and ".symtab" not in sections
            and "RUNPATH" not in dynamic,
            f"{os.path.basename(binary)} is stripped and has no paths of its own",
            dynamic,
        )
    if not shutil.which("pkg-config"):
        return skip("the C example with libriffle-dev", "pkg-config is not installed")
    # In an installed system pkg-config leaves these folders out, as the compiler's own.
    flags = run(
        "pkg-config",
        "--cflags",
        "--libs",
        "riffle",
        env=dict(os.environ, PKG_CONFIG_LIBDIR=f"{libdir}/pkgconfig"),
    ).stdout.split()
    check(flags == ["-lriffle"], "pkg-config adds the library alone", flags)
    program = os.path.join(folder, "example")
    done = run(
        "cc",
        "-std=c11",
        os.path.join(ROOT, "tests/capi/example.c"),
        f"-I{root}/usr/include",
        f"-L{libdir}",
        *flags,
        "-lpthread",
        "-o",
        program,
    )
    if passed("the C example compiles with libriffle-dev", done):
        passed(
            "and runs with libriffle0",
            run(program, MODEL, env=environment(LD_LIBRARY_PATH=libdir)),
            "ok abort",
        )


main(packages)
