"""The official job-attachment packages behind a command line.

    official.py serve

answers requests, one JSON object a line, on its standard input. A request has a command (`cmd`) and its arguments beside it; the
answer is {"ok": true, "value": ...}, or {"ok": false, "error": class, "message": text}. What each command takes and gives is said at
its function below. It ends at the end of its input.

Manifests travel as the text that they are, which is ASCII; so lone surrogates are escapes within it, and never in a request. Where paths
are told by themselves they are WTF-8 in hex, for the same reason.
S3 is what the environment says (AWS_ENDPOINT_URL and the keys); HOME is to be a folder of the test's, since the packages keep caches
and a configuration there.
"""

import io
import json
import os
import random
import shutil
import sys
import time
from pathlib import Path

import boto3
from click.testing import CliRunner
from deadline.client.cli import main as deadline_cli
from deadline.job_attachments._diff import compare_manifest
from deadline.job_attachments._utils import _get_unique_dest_dir_name
from deadline.job_attachments.asset_manifests.decode import decode_manifest
from deadline.job_attachments.asset_manifests.hash_algorithms import HashAlgorithm, hash_data, hash_file
from deadline.job_attachments.asset_manifests.v2023_03_03 import asset_manifest as v2023
from deadline.job_attachments.asset_sync import AssetSync
from deadline.job_attachments.download import (
    OutputDownloader,
    get_output_manifests_by_asset_root,
    merge_asset_manifests,
    mount_vfs_from_manifests,
)
from deadline.job_attachments.models import (
    Attachments,
    FileConflictResolution,
    JobAttachmentsFileSystem,
    JobAttachmentS3Settings,
    ManifestProperties,
    PathFormat,
)
from deadline.job_attachments.os_file_permission import PosixFileSystemPermissionSettings
from deadline.job_attachments.upload import S3AssetManager
from deadline.job_attachments.vfs import VFSProcessManager

COMMANDS = {}


def command(function):
    COMMANDS[function.__name__] = function
    return function


def settings(bucket, root):
    return JobAttachmentS3Settings(s3BucketName=bucket, rootPrefix=root)


def s3():
    return boto3.client("s3")


# Formats


@command
def recode(text):
    """The canonical form of a manifest, or the decoder's refusal."""
    return decode_manifest(text).encode()


@command
def random_manifest(seed, count):
    """A manifest of `count` random entries, with names in every script, astral characters and lone surrogates."""
    rng = random.Random(seed)
    names = set()
    while len(names) < count:
        names.add("/".join(random_name(rng) for _ in range(rng.randint(1, 4))))
    # A name may not be a folder as well: not what is tested here.
    folders = {name[:at] for name in names for at in range(len(name)) if name[at] == "/"}
    paths = [
        v2023.ManifestPath(
            path=name,
            hash=f"{rng.getrandbits(128):032x}",
            size=rng.choice([0, 1, rng.getrandbits(20), rng.getrandbits(50)]),
            mtime=rng.choice([0, rng.getrandbits(50)]),
        )
        for name in sorted(names - folders)
    ]
    return encoded(paths)


def random_name(rng):
    # Scripts, symbols, private use, both ends of the surrogates, what follows them, and the planes above.
    ranges = [
        (0x20, 0x7E), (0xA1, 0x24F), (0x370, 0x5FF), (0x600, 0x6FF), (0x900, 0xDFF), (0x1E00, 0x1FFF), (0x2010, 0x2BFF),
        (0x3041, 0x30FF), (0x4E00, 0x9FFF), (0xAC00, 0xD7A3), (0xD800, 0xDFFF), (0xDC80, 0xDCFF), (0xE000, 0xF8FF),
        (0xFB00, 0xFFFD), (0x10000, 0x1FFFF), (0x20000, 0x2FFFF), (0xE0100, 0x10FFFF), (0x01, 0x1F), (0x7F, 0x9F),
    ]
    characters = []
    for _ in range(rng.randint(1, 12)):
        character = chr(rng.randint(*rng.choice(ranges)))
        # A high and a low surrogate side by side would be one character in JSON, and the official decoder reads it so.
        if character == "/" or (characters and is_low(character) and is_high(characters[-1])):
            continue
        characters.append(character)
    name = "".join(characters)
    return name if name not in ("", ".", "..") else random_name(rng)


def is_high(character):
    return "\ud800" <= character <= "\udbff"


def is_low(character):
    return "\udc00" <= character <= "\udfff"


def encoded(paths):
    total = sum(path.size for path in paths)
    manifest = v2023.AssetManifest(hash_alg=HashAlgorithm.XXH128, total_size=total, paths=paths)
    return manifest.encode()


@command
def merge(texts):
    """Several manifests as one, the last wins."""
    return merge_asset_manifests([decode_manifest(text) for text in texts]).encode()


@command
def compare(before, now):
    """What changed from one manifest to another: {status: [path in hex]}."""
    found = {}
    for status, path in compare_manifest(decode_manifest(before), decode_manifest(now)):
        found.setdefault(status.name, []).append(in_hex(path.path))
    return found


def in_hex(path):
    return path.encode("utf-8", errors="surrogatepass").hex()


@command
def hashes(root):
    """The hash of each file below a folder, by its relative path."""
    files = [path for path in sorted(Path(root).rglob("*")) if path.is_file()]
    return {str(path.relative_to(root)): hash_file(str(path), HashAlgorithm.XXH128) for path in files}


@command
def root_hash(root):
    """The hash of a root's path, as it is in the names of manifests."""
    return hash_data(root.encode(), HashAlgorithm.XXH128)


# The command line


@command
def deadline(arguments):
    """Runs `deadline ARGUMENTS...`: {code, output}."""
    result = CliRunner().invoke(deadline_cli, arguments)
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return {"code": result.exit_code, "output": result.output}


@command
def folder_diff(manifest, root):
    """What changed in a folder since a manifest was made of it, as `deadline manifest diff` says: {status: [path in hex]}."""
    ran = deadline(["manifest", "diff", "--manifest", manifest, "--root", root, "--json"])
    if ran["code"] != 0:
        raise RuntimeError(ran["output"])
    return {status.upper(): [in_hex(path) for path in paths] for status, paths in json.loads(ran["output"]).items()}


# Inputs and outputs of jobs


def manager(bucket, root, farm, queue):
    return S3AssetManager(farm_id=farm, queue_id=queue, job_attachment_settings=settings(bucket, root))


def hashed(manager, folder):
    files = [str(path) for path in sorted(Path(folder).rglob("*")) if path.is_file()]
    group = manager.prepare_paths_for_upload(files, [], [])
    cache = Path(os.environ["HOME"], "hash-cache")
    cache.mkdir(exist_ok=True)
    _, manifests = manager.hash_assets_and_create_manifest(
        group.asset_groups, group.total_input_files, group.total_input_bytes, str(cache)
    )
    return manifests


@command
def submit_inputs(bucket, root, farm, queue, folder):
    """Uploads a folder as a job's inputs: the attachments of the job's JSON."""
    assets = manager(bucket, root, farm, queue)
    cache = Path(os.environ["HOME"], "s3-check-cache")
    cache.mkdir(exist_ok=True)
    _, attachments = assets.upload_assets(hashed(assets, folder), s3_check_cache_dir=str(cache))
    return attachments.to_dict()


@command
def snapshot(farm, queue, folder, to):
    """Writes `Data/` and `Manifests/` of a folder below another, without S3: the attachments of the job's JSON."""
    assets = manager("none", "none", farm, queue)
    _, attachments = assets.snapshot_assets(to, hashed(assets, folder))
    return attachments.to_dict()


@command
def worker_outputs(bucket, root, farm, queue, job, step, task, action, asset_root, folder, session):
    """Uploads the files of a folder as what a worker's task left below `asset_root`/out; `session` is its working folder."""
    local = Path(session, _get_unique_dest_dir_name(asset_root), "out")
    attachments = Attachments(manifests=[ManifestProperties(asset_root, PathFormat.POSIX, outputRelativeDirectories=["out"])])
    started = time.time()
    shutil.copytree(folder, local)
    sync = AssetSync(farm)
    sync.sync_outputs(settings(bucket, root), attachments, queue, job, step, task, action, started, Path(session))


@command
def outputs(bucket, root, farm, queue, job, step=None, task=None):
    """The output manifests that a download of a job's, step's or task's output finds: {asset root: [manifest]}."""
    found = get_output_manifests_by_asset_root(settings(bucket, root), farm, queue, job, step, task)
    return {asset_root: [manifest.encode() for manifest in manifests] for asset_root, manifests in found.items()}


@command
def download_outputs(bucket, root, farm, queue, job, to, step=None, task=None):
    """Downloads the output of a job, step or task, each asset root to its folder in `to`: the relative paths in hex."""
    downloader = OutputDownloader(settings(bucket, root), farm, queue, job, step, task)
    for asset_root, folder in to.items():
        downloader.set_root_path(asset_root, folder)
    downloader.download(file_conflict_resolution=FileConflictResolution.OVERWRITE)
    return [in_hex(path) for path in sorted(path for paths in downloader.get_paths_by_root().values() for path in paths)]


# The worker's virtual mount


@command
def vfs_command(bucket, region, manifest, mount, user, cas_prefix=None, cache=None):
    """The command line with which a worker mounts a manifest."""
    process = VFSProcessManager(
        bucket, region, manifest, mount, user, {}, cas_prefix=cas_prefix, asset_cache_path=cache
    )
    return process.build_launch_command(mount)


@command
def vfs_mount(bucket, root, manifest, mount, session, user, group):
    """Mounts a manifest as a worker does, and returns when the mount is there."""
    Path(session).mkdir(exist_ok=True)
    permissions = PosixFileSystemPermissionSettings(user, group, 0o750, 0o640)
    mount_vfs_from_manifests(
        bucket,
        {mount: decode_manifest(Path(manifest).read_text())},
        boto3.Session(),
        Path(session),
        dict(os.environ),
        permissions,
        settings(bucket, root).full_cas_prefix(),
    )


@command
def vfs_unmount(session, user):
    """Ends what `vfs_mount` mounted in a session, as a worker does."""
    VFSProcessManager.kill_all_processes(Path(session), user)


# A worker's session with virtual mounts

SESSIONS = {}


def job_attachments(attachments):
    """What a job's JSON says of its inputs, virtual, with the folder `out` of each root for its outputs."""
    manifests = [
        ManifestProperties(
            given["rootPath"],
            PathFormat(given["rootPathFormat"]),
            inputManifestPath=given["inputManifestPath"],
            inputManifestHash=given["inputManifestHash"],
            outputRelativeDirectories=["out"],
        )
        for given in attachments["manifests"]
    ]
    return Attachments(manifests=manifests, fileSystem=JobAttachmentsFileSystem.VIRTUAL.value)


@command
def session_inputs(bucket, root, farm, queue, job, attachments, session, user, group, variables, steps=None):
    """Mounts a job's inputs, and the outputs of the steps that it depends on, as a worker does: {asset root: folder}."""
    Path(session).mkdir(exist_ok=True)
    sync = SESSIONS.setdefault(session, AssetSync(farm))
    _, rules = sync.attachment_sync_inputs(
        settings(bucket, root),
        job_attachments(attachments),
        queue,
        job,
        Path(session),
        PosixFileSystemPermissionSettings(user, group, 0o770, 0o660),
        step_dependencies=steps,
        os_env_vars=variables,
    )
    return {rule["source_path"]: rule["destination_path"] for rule in rules}


@command
def session_outputs(bucket, root, farm, queue, job, step, task, action, attachments, session):
    """Uploads what was written below the mounts of a session, as a worker does after a task."""
    SESSIONS[session].sync_outputs(
        settings(bucket, root), job_attachments(attachments), queue, job, step, task, action, time.time(), Path(session)
    )


@command
def session_end(session, user):
    """Ends a session's mounts, as a worker does."""
    SESSIONS.pop(session).cleanup_session(Path(session), JobAttachmentsFileSystem.VIRTUAL.value, user)


# S3 itself


@command
def make_bucket(bucket):
    s3().create_bucket(Bucket=bucket, CreateBucketConfiguration={"LocationConstraint": os.environ["AWS_REGION"]})


@command
def objects(bucket, prefix=""):
    """Everything below a prefix: {key: {size, metadata}}."""
    client = s3()
    found = {}
    for page in client.get_paginator("list_objects_v2").paginate(Bucket=bucket, Prefix=prefix):
        for item in page.get("Contents", []):
            head = client.head_object(Bucket=bucket, Key=item["Key"])
            found[item["Key"]] = {"size": item["Size"], "metadata": head["Metadata"]}
    return found


@command
def put_object(bucket, key, text, metadata):
    s3().put_object(Bucket=bucket, Key=key, Body=text.encode(), Metadata=metadata)


@command
def get_object(bucket, key):
    return s3().get_object(Bucket=bucket, Key=key)["Body"].read().decode()


def answer(line):
    try:
        request = json.loads(line)
        return {"ok": True, "value": COMMANDS[request.pop("cmd")](**request)}
    except Exception as error:
        return {"ok": False, "error": type(error).__name__, "message": str(error)}


def main():
    if sys.argv[1:] != ["serve"]:
        sys.exit(__doc__)
    requests = io.TextIOWrapper(sys.stdin.buffer, encoding="utf-8", newline="\n")
    # What the packages and the programs that they start print is for people.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    for line in requests:
        print(json.dumps(answer(line)), file=answers, flush=True)


if __name__ == "__main__":
    main()
