"""DomainNet (the cleaned version) in tllib's layout: six domains, 345 classes, a train and a test list of each domain."""

import os
from typing import List, Sequence

from tllib_ext.split import LabelSplit
from tllib_ext.vision.datasets.benchmarks import Benchmark
from tllib_ext.vision.datasets.builder import Data, DataRequest, find_domain
from tllib_ext.vision.datasets.imagelist import ImageList

__all__ = ["CLASSES", "DomainNet", "domainnet"]

#: in the order of the lists' labels, which is alphabetical if case and hyphens do not count.
#:
#: :meta hide-value:
CLASSES = """
aircraft_carrier airplane alarm_clock ambulance angel animal_migration ant anvil apple arm asparagus axe backpack
banana bandage barn baseball baseball_bat basket basketball bat bathtub beach bear beard bed bee belt bench bicycle
binoculars bird birthday_cake blackberry blueberry book boomerang bottlecap bowtie bracelet brain bread bridge
broccoli broom bucket bulldozer bus bush butterfly cactus cake calculator calendar camel camera camouflage campfire
candle cannon canoe car carrot castle cat ceiling_fan cello cell_phone chair chandelier church circle clarinet clock
cloud coffee_cup compass computer cookie cooler couch cow crab crayon crocodile crown cruise_ship cup diamond
dishwasher diving_board dog dolphin donut door dragon dresser drill drums duck dumbbell ear elbow elephant envelope
eraser eye eyeglasses face fan feather fence finger fire_hydrant fireplace firetruck fish flamingo flashlight
flip_flops floor_lamp flower flying_saucer foot fork frog frying_pan garden garden_hose giraffe goatee golf_club
grapes grass guitar hamburger hammer hand harp hat headphones hedgehog helicopter helmet hexagon hockey_puck
hockey_stick horse hospital hot_air_balloon hot_dog hot_tub hourglass house house_plant hurricane ice_cream jacket
jail kangaroo key keyboard knee knife ladder lantern laptop leaf leg light_bulb lighter lighthouse lightning line lion
lipstick lobster lollipop mailbox map marker matches megaphone mermaid microphone microwave monkey moon mosquito
motorbike mountain mouse moustache mouth mug mushroom nail necklace nose ocean octagon octopus onion oven owl
paintbrush paint_can palm_tree panda pants paper_clip parachute parrot passport peanut pear peas pencil penguin piano
pickup_truck picture_frame pig pillow pineapple pizza pliers police_car pond pool popsicle postcard potato
power_outlet purse rabbit raccoon radio rain rainbow rake remote_control rhinoceros rifle river roller_coaster
rollerskates sailboat sandwich saw saxophone school_bus scissors scorpion screwdriver sea_turtle see_saw shark sheep
shoe shorts shovel sink skateboard skull skyscraper sleeping_bag smiley_face snail snake snorkel snowflake snowman
soccer_ball sock speedboat spider spoon spreadsheet square squiggle squirrel stairs star steak stereo stethoscope
stitches stop_sign stove strawberry streetlight string_bean submarine suitcase sun swan sweater swing_set sword
syringe table teapot teddy-bear telephone television tennis_racquet tent The_Eiffel_Tower The_Great_Wall_of_China
The_Mona_Lisa tiger toaster toe toilet tooth toothbrush toothpaste tornado tractor traffic_light train tree triangle
trombone truck trumpet t-shirt umbrella underwear van vase violin washing_machine watermelon waterslide whale wheel
windmill wine_bottle wine_glass wristwatch yoga zebra zigzag
""".split()

LETTERS = {"c": "clipart", "i": "infograph", "p": "painting", "q": "quickdraw", "r": "real", "s": "sketch"}
PARTS = ("train", "test")


class DomainNet(Benchmark):
    """The builder ``DomainNet``.

    A domain, ``real`` or ``r``, holds the images of its two lists, as universal domain adaptation uses them;
    ``real_train`` and ``real_test`` are the two parts. The label sets of a run are 150/50/145 in alphabetical order.
    """

    def __init__(self) -> None:
        super().__init__(
            "DomainNet", LETTERS, "clipart/<class>/*.jpg, infograph/…, …", CLASSES,
            {f"{domain}_{part}": f"{domain}_{part}" for domain in LETTERS.values() for part in PARTS},
            LabelSplit.parse("DomainNet:universal", CLASSES),
        )  # fmt: skip

    def domains(self, root: str) -> Sequence[str]:
        return list(LETTERS.values())

    def find(self, text: str, domains: Sequence[str]) -> str:
        name, _, part = text.rpartition("_")
        if part in PARTS:
            return f"{find_domain(name, domains, self.letters)}_{part}"
        return find_domain(text, domains, self.letters)

    def open(self, root: str, source: str, target: str, request: DataRequest) -> Data:
        first, second = (self._read(root, domain, request) for domain in (source, target))
        return Data(request.name, source, target, first, second, split=self.split)

    def _read(self, root: str, domain: str, request: DataRequest) -> ImageList:
        stems = [domain] if domain in self.lists else [f"{domain}_{part}" for part in PARTS]
        files = [os.path.join(root, "image_list", f"{stem}.txt") for stem in stems]
        lists: List[ImageList] = [ImageList(root, self.classes, file, allow_outside=request.allow_outside) for file in files]
        lists[0].samples = [sample for part in lists for sample in part.samples]
        return lists[0]


domainnet = DomainNet()
